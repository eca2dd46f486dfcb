"""The lake: what the broker's logs hold, for Spark and for tables. Imports nothing by itself."""
