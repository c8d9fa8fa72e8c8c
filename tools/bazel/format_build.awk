# Layout of BUILD and .bzl files: four spaces, no blanks at a line's end, one
# blank line at most, and srcs, hdrs, deps sorted as buildifier sorts them:
# own labels first, then //, then @. Reads one file, prints it laid out.

function rank(line) {
  if (line ~ /"@/) return 3
  if (line ~ /"\/\//) return 2
  return line ~ /":/ ? 1 : 0
}

function before(a, b) {
  if (rank(a) != rank(b)) return rank(a) < rank(b)
  return a < b
}

function put_sorted(   i, j, line) {
  for (i = 2; i <= count; i++) {
    line = entries[i]
    for (j = i - 1; j > 0 && before(line, entries[j]); j--)
      entries[j + 1] = entries[j]
    entries[j + 1] = line
  }
  for (i = 1; i <= count; i++) print entries[i]
  count = 0
}

{
  gsub(/\t/, "    ")
  sub(/[ \r]+$/, "")
}

in_list && /^ *"[^"]*",$/ {
  entries[++count] = $0
  next
}

{ put_sorted() }

/^ *\]/ { in_list = 0 }

/^ *(srcs|hdrs|deps|data|textual_hdrs) = \[$/ { in_list = 1 }

/^$/ {
  num_blank++
  next
}

{
  if (num_blank && NR > num_blank + 1) print ""
  num_blank = 0
  print
}

END { put_sorted() }
