"""The canary split: which merchants' orders go to the canary workers."""
