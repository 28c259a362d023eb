"""Whether new numbers are as good as a baseline's: rules, what is compared, and verdicts."""
