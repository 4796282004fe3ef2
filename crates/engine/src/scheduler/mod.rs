//! Step 4: which sequences run in this step, and how many tokens of each.
