"""`bench faults`: faults injected into real runs, real processes and real files; each says what must hold."""
