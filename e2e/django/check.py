"""What docs/frameworks.md promises of Django, asked of a pool at the stage Split whose replica applies late.

Prints a line for each promise that holds; the first that does not ends it.
"""

import time

import django

django.setup()

from django.db import connection, connections, transaction  # noqa: E402
from shop.models import Order  # noqa: E402
from shop.routing import on_primary  # noqa: E402


def where(using="default"):
    """The server of the session's last transaction."""
    with connections[using].cursor() as cursor:
        cursor.execute("SHOW ROUTE LAST")
        return cursor.fetchone()[0]


def role():
    with connection.cursor() as cursor:
        cursor.execute("SHOW SERVER ROLE")
        return cursor.fetchone()[0]


def await_replica():
    """A session that has written reads on the replica again once that has come as far."""
    deadline = time.monotonic() + 30
    while True:
        count = Order.objects.count()
        if where() == "two":
            return count
        assert time.monotonic() < deadline, "reads do not come back to the replica"
        time.sleep(0.02)


def holds(what, condition):
    assert condition, what
    print("holds:", what, flush=True)


holds("a read goes to the replica", await_replica() == 1)

order = Order.objects.create(item="second")
seen = Order.objects.filter(pk=order.pk).exists()
holds("a session sees what it has just written", seen)
holds("and on the primary, while the replica has not got it", where() == "one")
holds("and on the replica once that has it", await_replica() == 2)

with transaction.atomic():
    Order.objects.count()
holds("a block of atomic() runs on the primary", where() == "one")
await_replica()

try:
    with transaction.atomic():
        Order.objects.create(item="never")
        with transaction.atomic():
            Order.objects.create(item="nor this")
        raise LookupError
except LookupError:
    pass
holds("what is rolled back is gone", not Order.objects.filter(item__startswith="n").exists())
await_replica()

before = role()
with on_primary():
    Order.objects.count()
    first = where()
    with on_primary():
        Order.objects.count()
    Order.objects.count()
    holds("on_primary() reads on the primary, nested too", (first, where()) == ("one", "one"))
holds("and leaves the role as it was", role() == before)
Order.objects.count()
holds("so that the next read goes to the replica", where() == "two")

try:
    with on_primary(), transaction.atomic():
        Order.objects.create(item="first again", pk=order.pk)
except django.db.IntegrityError:
    pass
holds("on_primary() ends behind an error too", role() == before)
await_replica()

rows = list(Order.objects.order_by("pk").iterator(chunk_size=1))
holds("iterator() reads on the replica", (len(rows), where()) == (2, "two"))

Order.objects.using("primary").count()
holds("the alias primary reads on the primary", where("primary") == "one")

connection.close()
holds("a new connection reads on the replica", (Order.objects.count(), where()) == (2, "two"))
