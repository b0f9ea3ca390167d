! The largest eigenvalue of a matrix whose rows are divided over the ranks, by power iteration: each rank multiplies its
! rows, and all_gather gives every rank the whole vector. Fortran calls the C functions by iso_c_binding.
!
!   gfortran -O2 power.F90 -o power $(pkg-config --libs rankwise)
!   rankwise run -n 4 -- ./power
module rankwise
  use, intrinsic :: iso_c_binding
  implicit none
  integer(c_int), parameter :: api_version = 1, f64 = 0
  interface
    integer(c_int) function rankwise_init_version(version, comm) bind(c)
      import; integer(c_int), value :: version; type(c_ptr) :: comm
    end function
    integer(c_int) function rankwise_close(comm, timeout) bind(c)
      import; type(c_ptr) :: comm; real(c_double), value :: timeout
    end function
    integer(c_int) function rankwise_rank(comm) bind(c)
      import; type(c_ptr), value :: comm
    end function
    integer(c_int) function rankwise_world_size(comm) bind(c)
      import; type(c_ptr), value :: comm
    end function
    integer(c_int) function rankwise_all_gather(comm, send, recv, count, dtype) bind(c)
      import; type(c_ptr), value :: comm; real(c_double) :: send(*), recv(*)
      integer(c_int64_t), value :: count; integer(c_int), value :: dtype
    end function
    subroutine rankwise_check(status) bind(c)
      import; integer(c_int), value :: status
    end subroutine
    subroutine rankwise_at(file, line, function) bind(c) ! errors say that the next call is here
      import; character(kind=c_char) :: file(*), function(*); integer(c_int), value :: line
    end subroutine
  end interface
end module

program power
  use rankwise
  implicit none
  integer, parameter :: rows = 8
  type(c_ptr) :: comm
  integer :: i, j, n, first, step
  real(c_double), allocatable :: a(:, :), x(:)
  real(c_double) :: y(rows), eigenvalue
  call rankwise_check(rankwise_init_version(api_version, comm))
  n = rows * rankwise_world_size(comm)
  first = rows * rankwise_rank(comm)
  allocate (a(rows, n), x(n))
  a = reshape([((1d0 / (first + i + j - 1), i = 1, rows), j = 1, n)], [rows, n]) ! the Hilbert matrix
  x = 1
  do step = 1, 20
    y = matmul(a, x)
    call rankwise_at("power.F90"//c_null_char, __LINE__, "power"//c_null_char)
    call rankwise_check(rankwise_all_gather(comm, y, x, int(rows, c_int64_t), f64))
    eigenvalue = norm2(x)
    x = x / eigenvalue
  end do
  if (rankwise_rank(comm) == 0) print '(a, f12.10)', 'largest eigenvalue ', eigenvalue
  call rankwise_check(rankwise_close(comm, 1d0))
end program
