"""What a model needs and what it does, measured: nothing in here changes how it trains."""
