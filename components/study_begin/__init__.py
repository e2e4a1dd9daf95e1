"""The step `study_begin`: a request becomes a study whose trials a service starts."""
