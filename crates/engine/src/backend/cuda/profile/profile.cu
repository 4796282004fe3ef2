// The end of a pass, for a profile.

// Is launched behind the last kernel: when its inputs are there, that one has ended.
KERNEL void end_of_pass() { wait_for_inputs(); }
