#!/usr/bin/env python3
"""Writes access.log, an access log of two hours in the combined format, the same each time:

    python3 crates/sluice/examples/make_log.py > crates/sluice/examples/access.log

People read pages, a crawler walks through all items, two machines guess passwords, and of two programs that use the API,
one sends its orders in bursts. As in real logs, there is a line that is no request of HTTP, and a line that is late.
"""

import datetime

START = datetime.datetime(2026, 3, 2, 8, 0, 0)
BROWSERS = [
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:147.0) Gecko/20100101 Firefox/147.0",
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/144.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 19_3 like Mac OS X) Version/19.3 Safari/604.1",
]
CRAWLER = "Mozilla/5.0 (compatible; Examplebot/2.1; +https://bot.example/)"

lines = []
seed = 20260302


def random(below):
    """Numerical Recipes' generator: the same numbers in all versions of Python."""
    global seed
    seed = (seed * 1664525 + 1013904223) % 2**32
    return seed * below // 2**32


def add(second, address, request, status, length, user="-", referer="-", agent="-"):
    time = START + datetime.timedelta(seconds=second)
    stamp = time.strftime("%d/%b/%Y:%H:%M:%S +0000")
    lines.append((second, len(lines), f'{address} - {user} [{stamp}] "{request}" {status} {length} "{referer}" "{agent}"'))


def people():
    for number in range(45):
        address = f"198.51.100.{10 + number}" if number % 5 else f"2001:db8:{number:x}::{1 + random(9)}"
        agent = BROWSERS[random(len(BROWSERS))]
        second = random(6600)
        add(second, address, "GET / HTTP/1.1", 200, 5120 + random(300), agent=agent)
        add(second, address, "GET /assets/site.css HTTP/1.1", 200, 2048, referer="https://shop.example/", agent=agent)
        if number % 3 == 0:
            second += 8 + random(20)
            if random(3) == 0:
                add(second, address, "POST /login HTTP/1.1", 401, 180, referer="https://shop.example/", agent=agent)
                second += 6
            add(second, address, "POST /login HTTP/1.1", 303, 0, referer="https://shop.example/login", agent=agent)
        for _ in range(1 + random(3)):
            second += 5 + random(40)
            item = 1 + random(400)
            referer = f"https://shop.example/search?q={item % 17}"
            add(second, address, f"GET /search?q={item % 17} HTTP/1.1", 200, 900 + random(4000), agent=agent)
            add(second + 4, address, f"GET /items/{item} HTTP/1.1", 200, 7000 + random(900), referer=referer, agent=agent)


def crawler():
    address = "203.0.113.200"
    second = 900
    add(second, address, "GET /robots.txt HTTP/1.1", 200, 68, agent=CRAWLER)
    item = 1
    while item <= 400:
        second += 25 + random(30)
        for _ in range(4 + random(5)):
            status = 404 if random(25) == 0 else 200
            add(second, address, f"GET /items/{item} HTTP/1.1", status, 7000 + random(900), agent=CRAWLER)
            item += 1


def attack():
    for address, begin, every in [("192.0.2.66", 3120, 1), ("192.0.2.67", 3150, 2)]:
        for attempt in range(100):
            add(begin + attempt * every, address, "POST /login HTTP/1.1", 401, 180, agent="python-requests/2.32")


def programs():
    for burst in range(8):
        second = 300 + 840 * burst + random(60)
        for order in range(20 + random(15)):
            add(second + order // 25, "203.0.113.21", "POST /api/orders HTTP/1.1", 201, 310, user="acme", agent="acme-sync/4.2")
    for poll in range(60):
        second = 60 + 115 * poll
        add(second, "203.0.113.88", f"GET /api/orders/{7000 + poll} HTTP/1.1", 200, 420, user="blue", agent="curl/8.18.0")


people()
crawler()
attack()
programs()
lines.sort()
lines = [line for _, _, line in lines]
# A line that the server wrote when a long response was over, and one of a client that speaks TLS.
late = next(index for index, line in enumerate(lines) if "/assets/site.css" in line and index > 300)
lines.insert(late + 8, lines.pop(late))
lines.insert(512, r'192.0.2.9 - - [02/Mar/2026:08:40:00 +0000] "\x16\x03\x01\x02\x00" 400 157 "-" "-"')
print("\n".join(lines))
