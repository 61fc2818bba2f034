"""What each page shows: a plain model, made by an async function from a `Visit`."""
