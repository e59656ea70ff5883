"""Who the merchants are: the store they are kept in and the directory that workers ask."""
