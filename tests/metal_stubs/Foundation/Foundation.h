/* SPDX-License-Identifier: MIT
 * Foundation.h - the declarations of Apple's Foundation that metal_gpu_darwin.m uses, for a syntax check.
 *
 * Written from the public documentation; nothing here can run. tools/check_metal_emulated.sh
 * gives this folder to the compiler in place of the SDK.
 */
#ifndef ISO_STUB_FOUNDATION_H
#define ISO_STUB_FOUNDATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef signed char BOOL;
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#define nil ((id)0)
typedef unsigned long NSUInteger;
typedef long NSInteger;

@protocol NSObject
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
@end

__attribute__((objc_root_class))
@interface NSObject <NSObject>
+ (instancetype)alloc;
- (instancetype)init;
@end

typedef NSUInteger NSStringEncoding;
enum { NSUTF8StringEncoding = 4 };

@interface NSString : NSObject
@property (readonly) const char *UTF8String;
- (instancetype)initWithUTF8String:(const char *)text;
- (instancetype)initWithBytes:(const void *)bytes length:(NSUInteger)length encoding:(NSStringEncoding)encoding;
@end

@interface NSError : NSObject
@property (readonly, copy) NSString *localizedDescription;
@property (readonly) NSInteger code;
@end

#endif
