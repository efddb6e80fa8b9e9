"""How good a model is on the user's pictures, and what another version of it loses.

open_dataset(path, task, labels) → Dataset ┐
model, its section of the pipeline file    ┴ open_exam → Exam
evaluate(model | engine | function, exam) → Accuracy
compare(Accuracy, Accuracy) → Comparison: drop, its 95 % interval, and whether it is within the budget
"""

from edgert.accuracy.compare import Comparison, compare
from edgert.accuracy.dataset import Dataset, open_dataset
from edgert.accuracy.evaluate import Accuracy, Candidate, evaluate
from edgert.accuracy.exam import Exam, Run, labels_of, open_exam
from edgert.accuracy.standing import Standing, side_by_side

__all__ = [
    "Accuracy",
    "Candidate",
    "Comparison",
    "Dataset",
    "Exam",
    "Run",
    "Standing",
    "compare",
    "evaluate",
    "labels_of",
    "open_dataset",
    "open_exam",
    "side_by_side",
]
