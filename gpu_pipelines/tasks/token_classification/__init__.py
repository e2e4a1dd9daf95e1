"""The task token_classification: the entities in a text, such as names, by a tag for each of its words."""
