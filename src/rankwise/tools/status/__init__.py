"""`rankwise status`: a running job, seen from outside, as a table, a web page or numbers for other programs."""
