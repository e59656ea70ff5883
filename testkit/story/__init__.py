"""What the story of ``testkit/page_story.py`` is made of."""
