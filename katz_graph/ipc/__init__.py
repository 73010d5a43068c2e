"""Child processes: started, listened to, watched and ended, and how plain values travel. Knows nothing of jobs, workers and models; never
imports torch."""
