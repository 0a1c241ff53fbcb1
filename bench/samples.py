"""Keeps what each round found, and sums it up over the rounds."""

import collections
import dataclasses
import statistics

RATIO_METRIC = "cpu_ms_per_1000_tx"


@dataclasses.dataclass(frozen=True)
class Row:
    """What one figure belongs to."""

    target: str
    label: str
    stage: str
    mode: str | None
    protocol: str
    clients: int

    @classmethod
    def of(cls, target, protocol, clients):
        return cls(target.name, target.label, target.stage, target.mode, protocol, clients)


class Samples:
    """The metrics of every row and round, and the failures."""

    def __init__(self, order):
        # The names of the targets, as the tables show them.
        self.order = order
        # Row, then metric, then round.
        self.found = collections.defaultdict(lambda: collections.defaultdict(dict))
        self.failures = collections.defaultdict(dict)

    def add(self, row, round_number, metrics):
        for metric, value in metrics.items():
            self.found[row][metric][round_number] = value

    def fail(self, row, round_number, why):
        self.failures[row][round_number] = why

    def rows(self, protocol, clients):
        """The rows of one table, those that only failed among them."""
        return [row for row in self.every_row() if (row.protocol, row.clients) == (protocol, clients)]

    def idle_rows(self, protocol):
        """The rows of the memory's table; how many clients were idle is not the same for all targets."""
        return [row for row in self.every_row() if row.protocol == protocol and row.clients]

    def every_row(self):
        return sorted({*self.found, *self.failures}, key=lambda row: self.order.index(row.target))

    def summary(self, row, metric):
        """The least, the median and the most over the rounds, or nothing."""
        values = self.found.get(row, {}).get(metric, {}).values()
        return spread(values)

    def ratio(self, row, reference):
        """The spread of the quotients of CPU per transaction, each of two cells of the same round."""
        other = self.reference(row, reference)
        if other is None or other == row:
            return None
        return self.quotient(row, other, RATIO_METRIC)

    def quotient(self, row, other, metric):
        """The spread of the quotients of a metric, each of two cells of the same round."""
        mine = self.found.get(row, {}).get(metric, {})
        theirs = self.found.get(other, {}).get(metric, {})
        return spread([mine[n] / theirs[n] for n in mine if theirs.get(n)])

    def reference(self, row, name):
        """The row of another target in the same table."""
        return next((other for other in self.rows(row.protocol, row.clients) if other.target == name), None)

    def records(self, references):
        """All as the list that results.json holds."""
        records = []
        for row in self.every_row():
            found = {metric: self.summary(row, metric) for metric in self.found.get(row, {})}
            found |= {f"cpu_ratio_to_{name}": self.ratio(row, name) for name in references}
            for metric, values in found.items():
                if values is not None:
                    records.append(record(row, metric, values))
        return records


def record(row, metric, values):
    found = {
        # One target at two stages.
        "target": row.target.removesuffix("-split"), "stage": row.stage, "protocol": row.protocol, "clients": row.clients, "metric": metric,
        "min": values[0], "median": values[1], "max": values[2],
    }
    # Only where the target was not run as the others: a pool of one server connection for each client.
    return found | ({"mode": row.mode} if row.mode == "session" else {})


def spread(values):
    values = list(values)
    if not values:
        return None
    return tuple(round(float(value), 4) for value in (min(values), statistics.median(values), max(values)))
