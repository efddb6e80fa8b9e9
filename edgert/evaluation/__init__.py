"""Evaluation of a model on a user's images, and of the loss of another version.

- open_evaluation(model, section of the pipeline file, LabeledDataset) → EvaluationSetup
- evaluate(model | engine | function, setup) → Accuracy
- evaluate_versions({name: candidate}, setup) → EvaluationResult: Accuracy of each, compared with the first
- compare(Accuracy, Accuracy) → Comparison: drop, its 95 % interval, and whether it is within the budget
"""

from edgert.evaluation.compare import Comparison, EvaluationResult, compare, evaluate_versions
from edgert.evaluation.evaluate_model import Accuracy, Candidate, EvaluationSetup, Run, evaluate, open_evaluation

__all__ = [
    "Accuracy",
    "Candidate",
    "Comparison",
    "EvaluationResult",
    "EvaluationSetup",
    "Run",
    "compare",
    "evaluate",
    "evaluate_versions",
    "open_evaluation",
]
