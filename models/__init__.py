"""What is true: values, rules and tables. Nothing here knows a loop or HTTP."""

VERSION = "0.1.0"
