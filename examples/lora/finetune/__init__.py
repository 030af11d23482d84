"""A Flower app: nodes finetune a small transformer by LoRA, one is poisoned, outvote aggregates."""
