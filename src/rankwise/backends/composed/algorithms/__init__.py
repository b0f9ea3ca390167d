"""Algorithms made of messages between ranks, which take about log2(n) latencies."""
