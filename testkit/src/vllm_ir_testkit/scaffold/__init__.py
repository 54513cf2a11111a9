"""Starting a provider: which names it may have, and the distribution that a template becomes under one."""
