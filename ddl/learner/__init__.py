"""The learner: `learner.Learner` for any training loop, `run.run_task` for task files.

Nothing is imported here: a process that joins has its SIGTERM handler (`departure`) in place before
it spends seconds on importing torch.
"""
