"""Text sources -> passages of a prefix and a continuation."""
