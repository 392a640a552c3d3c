"""The learner: `Learner` for any training loop, `run_task` for task files."""

from ddl.learner.learner import Learner
from ddl.learner.run import Ended, TaskOptions, run_task
from ddl.learner.session import JoinOptions

__all__ = ["Ended", "JoinOptions", "Learner", "TaskOptions", "run_task"]
