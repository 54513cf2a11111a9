"""The verbs `conformance`, `bench` and `new`: words and columns, and the only room of this distribution that prints."""
