"""A trace as one HTML file, which any browser opens without a network: timeline, waits between ranks, tables."""
