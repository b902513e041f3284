// Sarif checks files against the schema of SARIF 2.1.0, which it takes out of a library
// that has it.
//
//	go run . FILE…
//
// It is a module of its own, so that what it needs is no part of mcpfz-probe.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	_ "github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"
	"github.com/xeipuuv/gojsonschema"
)

func main() {
	if err := check(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(files []string) error {
	text, err := schema()
	if err != nil {
		return err
	}
	schema, err := gojsonschema.NewSchema(gojsonschema.NewStringLoader(text))
	if err != nil {
		return err
	}
	for _, file := range files {
		log, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		result, err := schema.Validate(gojsonschema.NewBytesLoader(log))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if wrong := result.Errors(); len(wrong) > 0 {
			return fmt.Errorf("%s: %d errors, the first of which is %v", file, len(wrong), wrong[0])
		}
	}
	return nil
}

// schema finds the library's constant, which it keeps to itself.
func schema() (string, error) {
	const module = "github.com/owenrumney/go-sarif/v3"
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", module, err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "pkg/report/v210/sarif/*.go"))
	if err != nil {
		return "", err
	}
	found := ""
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			return "", err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && spec.Names[0].Name == "schema" && len(spec.Values) == 1 {
				if literal, ok := spec.Values[0].(*ast.BasicLit); ok {
					found, err = strconv.Unquote(literal.Value)
				}
			}
			return true
		})
		if err != nil {
			return "", err
		}
	}
	if found == "" {
		return "", errors.New("the library has no schema any more")
	}
	return found, nil
}
