"""Models for `vllm-ir run`: where they come from, what is kept of them, and how they are loaded without a word."""
