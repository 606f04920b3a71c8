// nvcc links the CUDA runtime into a program unless it is told otherwise. The symbol table of the
// file says where its functions are: each begins with a jump to ours from here on.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <string>

#include "guest.h"

namespace {

constexpr size_t kJump = 14;       // bytes of a jump to any address
constexpr size_t kAlignment = 16;  // of functions: what is left behind a shorter one is padding

// A file that the program consists of, as it lies on disk.
class ElfFile {
 public:
  explicit ElfFile(const char* path) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (file < 0) return;
    if (fstat(file, &facts) == 0 && static_cast<size_t>(facts.st_size) > sizeof(Elf64_Ehdr)) {
      size_ = facts.st_size;
      void* pages = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
      if (pages != MAP_FAILED) bytes_ = static_cast<char*>(pages);
    }
    close(file);
    if (!bytes_) return;
    const auto& head = *reinterpret_cast<const Elf64_Ehdr*>(bytes_);
    const size_t end = head.e_shoff + size_t(head.e_shnum) * sizeof(Elf64_Shdr);
    if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 && head.e_shnum && end <= size_) {
      sections_ = reinterpret_cast<const Elf64_Shdr*>(bytes_ + head.e_shoff);
      count_ = head.e_shnum;
      names_ = bytes_ + sections_[head.e_shstrndx].sh_offset;
    }
  }
  ~ElfFile() {
    if (bytes_) munmap(bytes_, size_);
  }
  ElfFile(const ElfFile&) = delete;

  bool has_device_code() const {
    for (int i = 0; i < count_; ++i)
      if (std::strcmp(names_ + sections_[i].sh_name, ".nvFatBinSegment") == 0) return true;
    return false;
  }

  // Calls visit(symbol, name) for each symbol of a table, SHT_SYMTAB or SHT_DYNSYM.
  template <typename Visit>
  void each_symbol(unsigned table, Visit visit) const {
    for (int i = 0; i < count_; ++i) {
      const auto& section = sections_[i];
      if (section.sh_type != table) continue;
      const auto* symbols = reinterpret_cast<const Elf64_Sym*>(bytes_ + section.sh_offset);
      const char* texts = bytes_ + sections_[section.sh_link].sh_offset;
      for (size_t k = 0; k < section.sh_size / sizeof(Elf64_Sym); ++k)
        visit(symbols[k], texts + symbols[k].st_name);
    }
  }

 private:
  char* bytes_ = nullptr;
  size_t size_ = 0;
  const Elf64_Shdr* sections_ = nullptr;
  int count_ = 0;
  const char* names_ = nullptr;
};

void write_jump(char* at, void* to) {
  const size_t page = sysconf(_SC_PAGESIZE);
  const auto first = reinterpret_cast<uintptr_t>(at) & ~(page - 1);
  const size_t size = reinterpret_cast<uintptr_t>(at) + kJump - first;
  if (mprotect(reinterpret_cast<void*>(first), size, PROT_READ | PROT_WRITE | PROT_EXEC))
    b200::give_up("this system lets no program change its code, as a CUDA runtime that is linked"
                  " statically needs: link with -cudart shared");
  const unsigned char jump[6] = {0xff, 0x25, 0, 0, 0, 0};  // jmp *0(%rip)
  std::memcpy(at, jump, sizeof jump);
  std::memcpy(at + sizeof jump, &to, sizeof to);
  mprotect(reinterpret_cast<void*>(first), size, PROT_READ | PROT_EXEC);
}

void redirect(const char* path, uintptr_t base) {
  const ElfFile file(path);
  if (!file.has_device_code()) return;
  static void* const ours = [] {
    Dl_info here;
    dladdr(reinterpret_cast<void*>(&redirect), &here);
    return dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  bool is_shared = false, is_stripped = true;
  file.each_symbol(SHT_DYNSYM, [&](const Elf64_Sym& symbol, const char* name) {
    is_shared |= !symbol.st_shndx && std::strcmp(name, "__cudaRegisterFatBinary") == 0;
  });
  file.each_symbol(SHT_SYMTAB, [&](const Elf64_Sym& symbol, const char* name) {
    is_stripped = false;
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || !symbol.st_shndx) return;
    if (std::strncmp(name, "cuda", 4) && std::strncmp(name, "__cuda", 6)) return;
    void* to = dlsym(ours, name);
    if (to && (symbol.st_size >= kJump || symbol.st_value % kAlignment == 0))
      write_jump(reinterpret_cast<char*>(base + symbol.st_value), to);
  });
  if (is_stripped && !is_shared)
    b200::give_up("%s has the CUDA runtime linked in statically, and is stripped, so its functions"
                  " cannot be found: link it with -cudart shared, or leave out strip and -s",
                  path);
}

int each_object(dl_phdr_info* info, size_t, void*) {
  char self[4096];
  const char* path = info->dlpi_name;
  if (!path[0]) {
    const auto length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) return 0;
    self[length] = 0;
    path = self;
  }
  if (path[0] == '/') redirect(path, info->dlpi_addr);
  return 0;
}

}  // namespace

namespace b200 {

void give_up(const char* format, ...) {
  std::va_list words;
  va_start(words, format);
  std::fputs("b200 exec: ", stderr);
  std::vfprintf(stderr, format, words);
  std::fputs("\n", stderr);
  std::fflush(nullptr);
  _exit(2);
}

void redirect_static_runtimes() { dl_iterate_phdr(each_object, nullptr); }

}  // namespace b200
