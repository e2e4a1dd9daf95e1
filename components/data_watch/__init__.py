"""The step `data_watch`: whether there is anything new to train on."""
