"""The course. Lessons are read; what stands here are their programs."""
