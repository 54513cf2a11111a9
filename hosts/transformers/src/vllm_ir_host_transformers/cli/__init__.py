"""The verb `run`: words and columns, and the only room of this distribution that writes to the terminal."""
