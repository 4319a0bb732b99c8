"""tidepool-tokenize: turns text and conversations into the shards of tokens that `tidepool train` reads.

command.py reads the options and runs the others. inputs.py reads files line by line; documents.py makes
drafts of documents out of lines: text, and the parts of it that the model learns. conversation.py finds these
parts with the chat template of template.py. tokenizer.py turns drafts into tokens, output.py puts each
document into a file, and shard.py writes the format, which shard_reader.py reads and decode.py prints.
chat.py talks with a model, through `tidepool generate`.
environment.py finds or makes the Python that has the packages; progress.py writes to stderr.
"""
