"""How a Spark program is run over one exact range, and its result checked."""
