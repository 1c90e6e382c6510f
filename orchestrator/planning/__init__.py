"""Plans what is trained: sweep files, their studies, their time and cost."""
