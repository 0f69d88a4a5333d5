"""Tries what the policy denies, ROUNDS times each, and prints a JSON object: for each
attempt what the denials were like, and how many milliseconds they took."""
import errno
import json
import socket
import ssl
import struct
import sys
import time

ROUNDS = int(sys.argv[1])
LIMIT = 3  # seconds, after which nothing more is waited for
EVIL = {4: "203.0.113.66", 6: "2001:db8::66"}
RESOLVER = {4: "203.0.113.53", 6: "2001:db8::53"}
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
QUESTION = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + b"\4evil\4test\0" + struct.pack(">2H", 1, 1)


def tcp(version, address, port):
    s = socket.socket(FAMILY[version], socket.SOCK_STREAM)
    s.settimeout(LIMIT)
    s.connect((address, port))
    return s


def silent(version):
    """A client that would wait for the server's first word."""
    began = time.perf_counter()
    tcp(version, EVIL[version], 22).recv(1)
    return "open", began


def http(version):
    with tcp(version, EVIL[version], 80) as s:
        began = time.perf_counter()
        s.sendall(b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        return s.recv(64).split(b"\r\n")[0].decode(), began


def tls(version):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with tcp(version, EVIL[version], 443) as s:
        secured = context.wrap_socket(s, server_hostname="evil.test", do_handshake_on_connect=False)
        began = time.perf_counter()
        try:
            secured.do_handshake()
        except ssl.SSLError as e:
            return e.reason, began
        return "open", began


def datagram(version, kind, protocol, port, payload):
    s = socket.socket(FAMILY[version], kind, protocol)
    s.settimeout(LIMIT)
    s.connect((EVIL[version], port))
    began = time.perf_counter()
    s.send(payload)
    s.recv(64)
    return "open", began


def udp(version):
    return datagram(version, socket.SOCK_DGRAM, 0, 443, b"beacon")


def icmp(version):
    protocol = {4: socket.IPPROTO_ICMP, 6: socket.IPPROTO_ICMPV6}[version]
    echo = struct.pack(">BBHHH", {4: 8, 6: 128}[version], 0, 0, 0, 1)
    return datagram(version, socket.SOCK_DGRAM, protocol, 0, echo)


def rcode(answer):
    return "RCODE %d" % (answer[3] & 15)


def dns_udp(version):
    s = socket.socket(FAMILY[version], socket.SOCK_DGRAM)
    s.settimeout(LIMIT)
    began = time.perf_counter()
    s.sendto(QUESTION, (RESOLVER[version], 53))
    return rcode(s.recv(512)), began


def dns_tcp(version):
    began = time.perf_counter()
    with tcp(version, RESOLVER[version], 53) as s:
        s.sendall(struct.pack(">H", len(QUESTION)) + QUESTION)
        return rcode(s.recv(512)[2:]), began


def once(attempt, version):
    began = time.perf_counter()
    try:
        how, began = attempt(version)
    except socket.timeout:
        how = "timeout"
    except OSError as e:
        how = errno.errorcode.get(e.errno, str(e))
    return how, (time.perf_counter() - began) * 1000


report = {}
for attempt in (silent, http, tls, udp, icmp, dns_udp, dns_tcp):
    for version in (4, 6):
        outcomes = [once(attempt, version) for _ in range(ROUNDS)]
        report["%s over IPv%d" % (attempt.__name__, version)] = {
            "how": sorted({how for how, _ in outcomes}),
            "ms": sorted(ms for _, ms in outcomes),
        }
print(json.dumps(report))
