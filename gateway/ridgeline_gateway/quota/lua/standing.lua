return finish(DONE)
