"""How far can the batch size of a training scale? Plan, run and read that experiment."""
