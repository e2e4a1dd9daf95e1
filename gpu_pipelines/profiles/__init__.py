"""What a champion's training data looked like, kept with the champion, to be compared with the data of later days."""
