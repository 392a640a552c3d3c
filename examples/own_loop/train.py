"""A training loop as anyone would write it."""

import sys

import torch
from spirals import Spirals, accuracy, batches

import ddl

torch.set_num_threads(1)
model = Spirals()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with ddl.Learner.join(sys.argv[1], model=model, optimizer=optimizer) as learner:
    for step, (x, y) in enumerate(batches(4000)):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.step(tokens=len(y), loss=loss)
        if learner.should_stop:
            break
        if step % 500 == 0:
            print(f"step {step}  loss {loss.item():.3f}", file=sys.stderr)

print(f"accuracy {accuracy(model):.3f}")
sys.exit(75 if learner.stop and learner.stop.kind in ("drained", "offline") else 0)
