"""How a model learns: encoder, objectives, engine, loop, fine-tuning. Knows nothing of ray or mlflow."""
