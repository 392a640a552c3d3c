"""A run's data, each row once an epoch, whoever comes and goes.

    batches = ddl.data.Units(dataset, unit_size=4096, batch_size=32, seed=ctx.seed)
    return ddl.Task(..., batches=batches)

The data is cut into units. The learners of a run claim them in one order, the same on all machines
and another one each epoch; what a dead learner had claimed goes to another one. What can be cut:
a map-style dataset (`__len__` and `__getitem__`), a file of tokens (`TokenFile`), or many files
(`Files`).
"""

from ddl.data.files import Files
from ddl.data.tokens import TokenFile
from ddl.data.units import Units

__all__ = ["Files", "TokenFile", "Units"]
