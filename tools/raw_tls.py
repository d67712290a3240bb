#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""raw_tls.py - how fast one plain TLS 1.3 stream is between two machines: what a hand-off's wire is compared with.

usage: raw_tls.py listen HOST:PORT    on the producer's machine (port 0: any; the one taken is printed), until Ctrl-C
       raw_tls.py HOST:PORT [MIB]     on the consumer's: receives 256 MiB, prints bytes per second

Give the figure to `isobit run --raw-tls-rate BYTES_S`: receipts then tell the wire's share of it. The same OpenSSL
and cipher as a hand-off; no protocol, no pages, no digests. The certificate is made for the run and not checked.
"""
import os, socket, ssl, struct, subprocess, sys, tempfile, time

PIECE = bytes(1 << 20)


def address(text):
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def certificate(folder):
    cert, key = os.path.join(folder, "cert"), os.path.join(folder, "key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-days", "1", "-subj", "/CN=raw", "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def listen(at):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:
        context.load_cert_chain(*certificate(folder))
    with socket.create_server(address(at)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            plain, _ = server.accept()
            try:
                with context.wrap_socket(plain, server_side=True) as s:
                    for _ in range(struct.unpack("<I", s.recv(4))[0]):
                        s.sendall(PIECE)
                    s.recv(1)  # until the other side has all of it
            except (OSError, struct.error) as e:
                print(f"raw_tls: {e}", file=sys.stderr)


def measure(at, mib):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with context.wrap_socket(socket.create_connection(address(at), timeout=10)) as s:
        room, got, start = memoryview(bytearray(1 << 20)), 0, None
        s.sendall(struct.pack("<I", mib))
        while got < mib << 20:
            n = s.recv_into(room)
            if n == 0:
                sys.exit(f"raw_tls: the stream ended after {got} bytes")
            got += n
            start = start or (time.monotonic(), got)  # the first bytes came with the handshake
        print(int((got - start[1]) / (time.monotonic() - start[0])))
        s.sendall(b".")


if len(sys.argv) == 3 and sys.argv[1] == "listen":
    try:
        listen(sys.argv[2])
    except KeyboardInterrupt:
        pass
elif len(sys.argv) in (2, 3) and ":" in sys.argv[1]:
    measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 256)
else:
    sys.exit(__doc__)
