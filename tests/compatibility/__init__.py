"""What an earlier release wrote, this one reads; and what this one makes, an earlier one works on."""
