"""The canary split: whose orders go to the canary workers."""
