"""How good a model is on the user's images, and what another version of it loses.

open_dataset(path, task, labels) → Dataset ┐
model, its section of the pipeline file    ┴ open_exam → Exam
evaluate(model | engine | function, exam) → Accuracy
compare(Accuracy, Accuracy) → Comparison: drop, its 95 % interval, and whether it is within the budget
"""

from edgert.dataset.labeled import Dataset, open_dataset
from edgert.evaluation.compare import Comparison, Standing, compare, side_by_side
from edgert.evaluation.evaluate_model import Accuracy, Candidate, evaluate
from edgert.evaluation.setup import Exam, Run, labels_of, open_exam

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
