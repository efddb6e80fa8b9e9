"""``sink: collect``: frames that are worth a label, as a dataset."""
