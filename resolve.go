package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// errPythonRaises is of what ends the evaluation in Python with an exception.
var errPythonRaises = errors.New("for Python this is an exception")

// resolvePath is Path(path).resolve() of Python 3.11: absolute, without links as far as
// there are any, whether or not there is something of that name. An error of the system
// is an fs.PathError, and one of Python's an errPythonRaises.
func resolvePath(path string) (string, error) {
	if strings.Contains(path, "\x00") || hasSurrogate(path) {
		return "", errPathText
	}
	// As Path itself has it: without what does not matter.
	root := ""
	if strings.HasPrefix(path, "/") {
		root = "/"
	}
	path = root + strings.Join(pathNames(path), "/")
	resolved, _, err := followLinks("", path, map[string]*string{})
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(resolved, "/") {
		dir, err := os.Getwd()
		if err != nil {
			return "", &fs.PathError{Op: "getwd", Path: path, Err: err}
		}
		resolved = dir + "/" + resolved
	}
	// What is behind a loop of links is still as it was.
	var names []string
	for _, name := range pathNames(resolved) {
		if name == ".." {
			names = names[:max(0, len(names)-1)]
		} else {
			names = append(names, name)
		}
	}
	resolved = "/" + strings.Join(names, "/")
	if _, err := os.Stat(resolved); errors.Is(err, syscall.ELOOP) {
		return "", fmt.Errorf("%w: links in a loop at %q", errPythonRaises, path)
	}
	return resolved, nil
}

// errPathText is of paths that no system call takes, for Python a ValueError.
var errPathText = fmt.Errorf("%w: no path has such characters", errPythonRaises)

func pathNames(path string) (names []string) {
	for name := range strings.SplitSeq(path, "/") {
		if name != "" && name != "." {
			names = append(names, name)
		}
	}
	return names
}

func hasSurrogate(s string) bool {
	for i := 0; ; i += 2 {
		n := strings.IndexByte(s[i:], 0xed)
		if n < 0 {
			return false
		}
		i += n
		if i+1 < len(s) && s[i+1] >= 0xa0 {
			return true
		}
		if i+2 > len(s) {
			return false
		}
	}
}

// followLinks appends rest to path, which has no links. done says that it came to the
// end, and not to a link that leads to itself. seen has, by link, where it leads; nil
// while that is being found out.
func followLinks(path, rest string, seen map[string]*string) (resolved string, done bool, err error) {
	if strings.HasPrefix(rest, "/") {
		path, rest = "/", rest[1:]
	}
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			path = parentOf(path)
			continue
		}
		next := joinPath(path, name)
		info, err := os.Lstat(next)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			path = next
			continue
		}
		if to, ok := seen[next]; ok {
			if to == nil {
				return joinPath(next, rest), false, nil
			}
			path = *to
			continue
		}
		seen[next] = nil
		target, err := os.Readlink(next)
		if err != nil {
			return "", false, err
		}
		if path, done, err = followLinks(path, target, seen); err != nil {
			return "", false, err
		} else if !done {
			return joinPath(path, rest), false, nil
		}
		to := path
		seen[next] = &to
	}
	return path, true, nil
}

func joinPath(path, name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	if path == "" || strings.HasSuffix(path, "/") {
		return path + name
	}
	return path + "/" + name
}

// parentOf is where .. leads from a path without links, which may be relative.
func parentOf(path string) string {
	if path == "" {
		return ".."
	}
	dir, name := path[:strings.LastIndexByte(path, '/')+1], path[strings.LastIndexByte(path, '/')+1:]
	if trimmed := strings.TrimRight(dir, "/"); trimmed != "" {
		dir = trimmed
	}
	if name == ".." {
		return joinPath(joinPath(dir, ".."), "..")
	}
	return dir
}

// within tells whether a resolved path is root, which is resolved, too, or in it.
func within(path, root string) bool {
	return root == "/" || path == root || strings.HasPrefix(path, root) && path[len(root)] == '/'
}
